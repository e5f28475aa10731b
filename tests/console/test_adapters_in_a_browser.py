"""An adapter from the member's disk to its answer, in a real browser."""

from __future__ import annotations

import io
import json
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import numpy
import pytest
from django.conf import settings
from playwright.async_api import Page, Request, expect
from safetensors.numpy import save_file

from tenants import activation, intake, releases, uploads
from tenants.actors import Actor as Doer
from tenants.callers import Role
from tenants.models import AdapterUpload, AdapterVersion, AuditEntry
from tests.console.conftest import shoot
from tests.console.people import member, operator, sign_in
from tests.gateway.house import Actor, House, Process
from tests.tenants.adapter_parts import NAMES, contents, declared

pytestmark = [pytest.mark.browser, pytest.mark.slow]

BY = Doer("command", "tests")


def written(folder: Path, tensors: dict[str, numpy.ndarray]) -> Path:
    folder.mkdir()
    save_file(tensors, folder / NAMES[1])
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj"]}
    (folder / NAMES[0]).write_text(json.dumps(config))
    return folder


def of_other_shapes(folder: Path) -> Path:
    """5 MB: several parts."""
    random = numpy.random.default_rng(0)
    prefix = "base_model.model.model.layers.0.self_attn.q_proj"
    shapes = {f"{prefix}.lora_A.weight": (2, 320_000), f"{prefix}.lora_B.weight": (320_000, 2)}
    return written(folder, {name: random.normal(size=shape).astype("float32") for name, shape in shapes.items()})


def of_its_model(folder: Path, house: House) -> Path:
    config, random = house.base.config, numpy.random.default_rng(1)
    size = config["hidden_size"]
    out = config["num_attention_heads"] * config.get("head_dim", size // config["num_attention_heads"])
    tensors = {}
    for layer in range(config["num_hidden_layers"]):
        prefix = f"base_model.model.model.layers.{layer}.self_attn.q_proj"
        tensors[f"{prefix}.lora_A.weight"] = random.normal(size=(2, size)).astype("float32")
        tensors[f"{prefix}.lora_B.weight"] = random.normal(size=(out, 2)).astype("float32")
    return written(folder, tensors)


async def upload(page: Page, folder: Path) -> None:
    await page.get_by_label("Files", exact=True).set_input_files([folder / name for name in NAMES])
    await page.wait_for_load_state()  # before, the form would be sent without its script, and is too large for that
    await page.get_by_role("button", name="Upload", exact=True).click()


def newest(actor: Actor) -> AdapterVersion:
    found: AdapterVersion = AdapterVersion.objects.filter(adapter__tenant=actor.tenant).latest("number")
    return found


async def test_an_upload_goes_on_and_its_report_follows(
    page: Page, gateway: Process, bare_house: House, acme: Actor, tmp_path: Path
) -> None:
    await sign_in(page.context, gateway.url, member(acme.tenant, Role.DEVELOPER))
    offsets: list[int] = []
    page.on("request", lambda request: offsets.append(_offset(request)) if request.method == "PUT" else None)
    other, right = of_other_shapes(tmp_path / "other"), of_its_model(tmp_path / "right", bare_house)
    files = contents(other)
    begun = uploads.create(BY, acme.tenant, name="pirate", files=declared(files))
    uploads.append(acme.tenant, begun.pk, NAMES[1], 0, io.BytesIO(files[NAMES[1]][:1_000_000]).read)

    await page.goto(f"{gateway.url}/console/t/acme/adapters")
    await expect(page.get_by_role("region", name="Open uploads")).to_contain_text("pirate")
    await page.get_by_role("link", name="Go on").click()
    await upload(page, other)
    await page.wait_for_url("**/adapters/pirate/versions/1")
    assert 1_000_000 in offsets, "it did not go on from where it was"
    assert AdapterUpload.objects.filter(tenant=acme.tenant).count() == 1
    await expect(page.get_by_role("status").first).to_contain_text("being checked")
    intake.check(newest(acme).pk)
    problems = page.get_by_role("region", name="Problems")
    await expect(problems).to_contain_text("q_proj", timeout=10_000)
    await expect(page.locator("[hx-trigger]")).to_have_count(0)
    await shoot(page, "adapter-rejected")

    await page.goto(f"{gateway.url}/console/t/acme/adapters/-/upload?name=pirate")
    await upload(page, right)
    await page.wait_for_url("**/adapters/pirate/versions/2")
    intake.check(newest(acme).pk)
    await expect(page.locator("#version")).to_contain_text("Its files are right", timeout=10_000)
    activation.waive(BY, acme.tenant, "pirate", 2, "no worker here")
    await expect(page.locator("#version")).to_contain_text("acme/pirate stands for it", timeout=10_000)
    await expect(page.locator("[hx-trigger]")).to_have_count(0)
    await shoot(page, "adapter-ready")


def _offset(request: Request) -> int:
    return int(parse_qs(urlsplit(request.url).query)["offset"][0])


async def test_a_slider_sets_a_canary_and_a_dialog_ends_it(
    page: Page, gateway: Process, bare_house: House, acme: Actor
) -> None:
    bare_house.adapter(acme, "pirate")
    adapter = newest(acme).adapter
    AdapterVersion.objects.create(adapter=adapter, number=2, state="ready", digest="ab" * 32)
    await sign_in(page.context, gateway.url, member(acme.tenant, Role.DEVELOPER))
    await page.goto(f"{gateway.url}/console/t/acme/adapters/pirate")
    await page.get_by_role("button", name="Set a canary").click()
    await page.get_by_role("slider").fill("35")
    await expect(page.get_by_role("spinbutton", name="Share of the requests, %")).to_have_value("35")
    await page.get_by_role("button", name="Set the canary").click()
    await expect(page.locator("#adapter")).to_contain_text("v2 as the canary for 35 %")
    await page.get_by_role("button", name="End the canary").click()
    dialog = page.get_by_role("dialog")
    await expect(dialog).to_contain_text("v2, which answers 35 % of the requests now, answers none")
    await dialog.get_by_role("button", name="End it").click()
    await expect(page.locator("#adapter")).to_contain_text("v1 answers all requests")
    assert releases.latest(adapter).canary is None


async def test_what_cannot_fit_is_said_before_it_is_read(
    page: Page, gateway: Process, bare_house: House, acme: Actor, tmp_path: Path
) -> None:
    acme.tenant.max_adapter_bytes = 2_500_000
    acme.tenant.save()
    await sign_in(page.context, gateway.url, member(acme.tenant, Role.DEVELOPER))
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url) if "uploads" in request.url else None)
    await page.goto(f"{gateway.url}/console/t/acme/adapters/-/upload?name=pirate")
    await upload(page, of_other_shapes(tmp_path / "large"))
    await expect(page.get_by_role("alert")).to_have_text(
        "These files have 5.1 MB, and the account has room for 2.5 MB of adapters. Delete adapters or versions first."
    )
    assert asked == [], "it was read first"
    await page.evaluate("document.getElementById('upload').dataset.largest = '{\"adapter_config.json\": 10}'")
    await page.get_by_role("button", name="Upload", exact=True).click()
    await expect(page.get_by_role("alert")).to_contain_text("adapter_config.json has 76 B; at most 10 B are taken.")


async def test_an_operator_uploads_for_an_account(
    page: Page, gateway: Process, bare_house: House, acme: Actor, tmp_path: Path
) -> None:
    """More than goes in one request, in parts like anybody's."""
    await sign_in(page.context, gateway.url, operator())
    large = of_other_shapes(tmp_path / "large")
    assert sum(len(content) for content in contents(large).values()) > settings.MAX_BODY_BYTES
    await page.goto(f"{gateway.url}/console/t/acme/adapters/-/upload?name=pirate")
    await upload(page, large)
    await page.wait_for_url("**/console/t/acme/adapters/pirate/versions/1")
    made = AuditEntry.objects.filter(tenant=acme.tenant, actor_kind="operator")
    assert made.exists()
