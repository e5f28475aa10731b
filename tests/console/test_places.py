"""What the views of pages are given."""

from __future__ import annotations

import typing
from inspect import signature

import pytest

from console.pages import At, pages
from console.place import Place, TenantPlace


@pytest.mark.parametrize("name", sorted(pages()))
def test_only_pages_of_tenants_alone_rely_on_a_tenant(name: str) -> None:
    each = pages()[name]
    second = list(signature(each.view).parameters)[1]
    asked = typing.get_type_hints(each.view)[second]
    assert asked in ({Place, TenantPlace} if each.at is At.TENANT else {Place})
