from __future__ import annotations

import pytest

from inference.errors import GrantRefused
from inference.grants import GrantVerifier
from tests.inference.front.actors import Signer


def test_a_grant_whose_body_came_too_late_is_refused() -> None:
    signer = Signer(base="b")
    now = [float(signer.grant().expires_at - 10)]
    verifier = GrantVerifier(signer.key.public_key(), base="b", clock=lambda: now[0])
    grant = verifier.verify(signer.token())
    now[0] = grant.expires_at + 1.0
    with pytest.raises(GrantRefused, match="expired"):
        verifier.use(grant)
