"""Settings fail loudly: a malformed one stops the start with one sentence that names it."""

import json
import os
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from pathlib import Path

import pytest

from gateway.config import SETTINGS, SettingError, read
from gateway.config.__main__ import table
from gateway.config.parse import database_url, email_url
from gateway.config.provider import provider
from inference.config import WorkerConfig
from inference.options import flag
from inference.options import table as option_table

PROJECT = Path(__file__).resolve().parents[2]

MALFORMED = [
    ("DATABASE_URL", "mysql://u:hunter2@localhost/x"),
    ("DATABASE_URL", "postgresql://u:hunter2@localhost:http/x"),
    ("DATABASE_URL", "postgresql://u:hunter2@localhost:99999/x"),
    ("DATABASE_URL", "postgresql://u:hunter2@localhost"),
    ("DATABASE_URL", "nonsense"),
    ("DATABASE_URL", "postgresql://u:hunter2@localhost/x?colour=red"),
    ("REDIS_URL", "localhost:6379"),
    ("REDIS_URL", "redis://:hunter2@"),
    ("REDIS_URL", "redis://:hunter2@localhost:0x50/1"),
    ("REDIS_URL", "redis://:hunter2@localhost/first"),
    ("REDIS_URL", "unix://relative.sock"),
    ("PORT", "0"),
    ("PORT", "65536"),
    ("PORT", "80a"),
    ("PORT", "-1"),
    ("LORAPLEX_HTTPS", "maybe"),
    ("LORAPLEX_LOG_LEVEL", "LOUD"),
    ("LORAPLEX_ALLOWED_HOSTS", " , "),
    ("LORAPLEX_TRUSTED_ORIGINS", "example.org"),
    ("LORAPLEX_KEY_PEPPERS", "hunter2"),
    ("LORAPLEX_KEY_PEPPERS", "1:abcd"),
    ("LORAPLEX_KEY_PEPPERS", f"1:{'ab' * 16},1:{'cd' * 16}"),
    ("LORAPLEX_MAX_BODY_BYTES", "4M"),
    ("LORAPLEX_PUBLIC_URL", "loraplex.example.org"),
    ("LORAPLEX_PUBLIC_URL", "https://a.example,https://b.example"),
    ("LORAPLEX_PUBLIC_URL", "https://a.example/path"),
    ("LORAPLEX_OIDC_ISSUER", "http://login.example.org"),
    ("LORAPLEX_OIDC_ISSUER", "login.example.org"),
    ("LORAPLEX_OIDC_ISSUER", "https://login.example.org/?x=1"),
    ("LORAPLEX_EMAIL_URL", "http://u:hunter2@mail.example.org"),
    ("LORAPLEX_EMAIL_URL", "smtp://u:hunter2@"),
    ("LORAPLEX_EMAIL_URL", "smtp://u:hunter2@mail.example.org:smtp"),
    ("LORAPLEX_WORKER_OPTIONS", "--weights int4"),
    ("LORAPLEX_WORKER_OPTIONS", "--no-such-option"),
    ("LORAPLEX_WORKER_OPTIONS", "--slots -1"),
    ("LORAPLEX_WORKER_OPTIONS", "--port 8100"),
    ("LORAPLEX_WORKER_OPTIONS", "--weights 'int8"),
]


@pytest.mark.parametrize(("name", "value"), MALFORMED)
def test_a_malformed_setting_is_named_in_one_sentence_without_its_secret(name, value):
    with pytest.raises(SettingError) as caught:
        read({name: value})
    sentence = str(caught.value)
    assert sentence.startswith(f"{name} must ")
    assert sentence.endswith(".")
    assert "\n" not in sentence
    assert "hunter2" not in sentence


def test_an_unknown_setting_names_the_nearest():
    with pytest.raises(SettingError, match=r"LORAPLEX_ALLOWED_HOST is not a setting.*LORAPLEX_ALLOWED_HOSTS"):
        read({"LORAPLEX_ALLOWED_HOST": "x"})


def test_an_empty_value_counts_as_unset():
    assert read({setting.name: " " for setting in SETTINGS}) == read({})


def test_a_database_url_becomes_what_libpq_reads():
    found = database_url("postgresql://me:p%40ss@db.example:5433/lora?sslmode=require")
    assert found == "user=me password=p@ss dbname=lora host=db.example port=5433 sslmode=require"


def test_a_mail_servers_url_becomes_djangos_settings():
    assert email_url("smtps://me:p%40ss@mail.example.org") == {
        "EMAIL_HOST": "mail.example.org",
        "EMAIL_PORT": 465,
        "EMAIL_HOST_USER": "me",
        "EMAIL_HOST_PASSWORD": "p@ss",
        "EMAIL_USE_TLS": False,
        "EMAIL_USE_SSL": True,
    }
    assert email_url("smtp://mail.example.org:2525")["EMAIL_USE_TLS"] is True


def test_half_a_provider_is_a_mistake_that_is_named(tmp_path):
    secret = tmp_path / "secret"
    given = {"LORAPLEX_OIDC_CLIENT_SECRET_FILE": str(secret), "LORAPLEX_OIDC_CLIENT_ID": "x"}
    with pytest.raises(SettingError, match=r"^LORAPLEX_OIDC_ISSUER must be set"):
        provider(read(given))
    given["LORAPLEX_OIDC_ISSUER"] = "https://login.example.org"
    with pytest.raises(SettingError, match=r"^LORAPLEX_OIDC_CLIENT_SECRET_FILE must name a file"):
        provider(read(given))
    secret.write_text("\n")
    with pytest.raises(SettingError, match="is empty"):
        provider(read(given))
    secret.write_text("hunter2\n")
    made = provider(read(given | {"LORAPLEX_OIDC_DOMAINS": "Example.org, @example.com"}))
    assert (made.secret, made.domains) == ("hunter2", {"example.org", "example.com"})
    assert "hunter2" not in repr(made)
    with pytest.raises(SettingError, match=r"^LORAPLEX_OIDC_CLIENT_ID must be set"):
        provider(read(given | {"LORAPLEX_OIDC_CLIENT_ID": ""}))
    assert provider(read({})) is None


def test_the_documented_options_are_the_workers():
    text = (PROJECT / "docs" / "worker.md").read_text()
    assert text.endswith(f"\n\n{option_table(WorkerConfig)}\n"), "run: python -m inference.config, and paste it"


def test_the_documented_list_is_the_registry():
    text = (PROJECT / "docs" / "settings.md").read_text()
    assert text.endswith(f"\n\n{table()}\n"), "run: python -m gateway.config, and paste it into docs/settings.md"


def test_any_option_of_the_worker_reaches_it(tmp_path):
    """As a worker that was started with it would read it."""
    code = (
        "import django.conf, pathlib, gateway.installation as i; p = pathlib.Path;"
        "print(*i.worker_command(p('m'), 81, ['--speculate=3'])[3:], sep='\\n')"
    )
    env = os.environ | {
        "LORAPLEX_DATA_DIR": str(tmp_path / "var"),
        "DJANGO_SETTINGS_MODULE": "gateway.settings",
        "LORAPLEX_WORKER_SLOTS": "2",
        "LORAPLEX_WORKER_OPTIONS": f"--weights int8 --speculate 4 --open-metrics --adapter-root '{tmp_path}'",
    }
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    (tmp_path / "config.json").write_text("{}")
    config = WorkerConfig.parse([*done.stdout.split("\n")[:-1], "--model", str(tmp_path)])
    assert (config.weights, config.speculate, config.slots, config.port) == ("int8", 3, 2, 81)
    assert (config.open_metrics, config.adapter_root) == (True, (tmp_path,))


def test_worker_takes_every_option_of_a_worker(tmp_path):
    shown = _manage("worker", "--help", LORAPLEX_DATA_DIR=str(tmp_path)).stdout
    missing = [flag(each) for each in fields(WorkerConfig) if flag(each) not in shown]
    assert missing == ["--adapter-store", "--grant-key"], "which the installation gives"


@pytest.mark.parametrize(
    ("options", "says"),
    [(("--port", "99999"), "--port must be at most 65535"), (("--slots=-1",), "--slots must be at least 0")],
)
def test_worker_names_what_is_out_of_range(options, says, tmp_path):
    done = _manage("worker", *options, LORAPLEX_DATA_DIR=str(tmp_path))
    assert (done.returncode, done.stderr) == (1, f"CommandError: {says}\n")


def _manage(*arguments, cwd=PROJECT, **environ):
    env = {name: value for name, value in os.environ.items() if not name.startswith("LORAPLEX_")} | environ
    command = [sys.executable, str(PROJECT / "manage.py"), *arguments]
    return subprocess.run(command, env=env, cwd=cwd, capture_output=True, text=True, timeout=60, check=False)


def test_manage_stops_with_the_sentence_and_no_traceback(tmp_path):
    done = _manage("check", LORAPLEX_DATA_DIR=str(tmp_path), DATABASE_URL="mysql://x")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("DATABASE_URL must ")


def test_an_unwritable_data_directory_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    done = _manage("check", LORAPLEX_DATA_DIR=str(tmp_path / "file" / "var"))
    assert done.returncode == 2
    assert done.stderr.startswith("LORAPLEX_DATA_DIR ")
    assert done.stderr.count("\n") == 1


def test_half_a_grant_key_pair_is_refused(tmp_path):
    environ = {"LORAPLEX_DATA_DIR": str(tmp_path), "LORAPLEX_GRANT_PRIVATE_KEY_FILE": "/no/such/key"}
    done = _manage("check", **environ)
    assert done.returncode == 2
    assert done.stderr == "LORAPLEX_GRANT_PRIVATE_KEY_FILE must name a file that can be read, not /no/such/key.\n"
    (tmp_path / "grant.pem").write_text("")
    done = _manage("check", **environ | {"LORAPLEX_GRANT_PRIVATE_KEY_FILE": str(tmp_path / "grant.pem")})
    assert done.stderr.startswith("LORAPLEX_GRANT_PUBLIC_KEY_FILE must be set")


def test_secrets_are_made_once_and_for_the_owner_alone_however_many_start_at_once(tmp_path):
    code = (
        "import django.conf, json; s = django.conf.settings;"
        "print(json.dumps([s.SECRET_KEY, {str(k): v.hex() for k, v in s.KEY_PEPPERS.items()},"
        "s.GRANT_PRIVATE_KEY_FILE.read_text(), s.GRANT_PUBLIC_KEY_FILE.read_text()]))"
    )
    env = os.environ | {"LORAPLEX_DATA_DIR": str(tmp_path / "var"), "DJANGO_SETTINGS_MODULE": "gateway.settings"}

    def start(_):
        return subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True).stdout

    with ThreadPoolExecutor(6) as pool:
        answers = {json.dumps(json.loads(out)) for out in pool.map(start, range(6))}
    assert len(answers) == 1
    keys = tmp_path / "var" / "keys"
    assert stat.S_IMODE(keys.stat().st_mode) == 0o700
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in keys.iterdir()}
    assert modes == {"django.key": 0o600, "peppers": 0o600, "grant.pem": 0o600, "grant.pub.pem": 0o644}
