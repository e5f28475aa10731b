"""The embedded servers that every test leans on."""

import stat

import psycopg
import pytest
import redis
from django.conf import settings
from django.db import DataError, IntegrityError, connection

from gateway.embedded import sockets


@pytest.mark.django_db
def test_the_database_is_postgresql_18():
    with connection.cursor() as cursor:
        cursor.execute("SHOW server_version")
        assert cursor.fetchone()[0].startswith("18.")


async def test_the_pool_reaches_the_same_database(db_pool):
    async with db_pool.connection() as conn:
        row = await (await conn.execute("SELECT current_database(), count(*) FROM django_migrations")).fetchone()
    assert row[0] == settings.DATABASES["default"]["NAME"]
    assert row[1] > 0


def test_valkey_answers():
    with redis.Redis.from_url(settings.REDIS_URL) as client:
        assert client.ping()


@pytest.mark.parametrize("depth", [1, 30])
def test_socket_paths_fit_however_deep_the_data_directory(tmp_path, depth):
    data_dir = tmp_path.joinpath(*["deep-folder"] * depth)
    for path in (sockets.socket_dir(data_dir) / sockets.POSTGRES_SOCKET, sockets.socket_dir(data_dir) / "valkey.sock"):
        assert len(str(path)) <= sockets.LONGEST_PATH
    assert sockets.socket_dir(data_dir) == sockets.socket_dir(data_dir)


def test_a_socket_folder_of_somebody_else_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    data_dir = tmp_path.joinpath(*["deep-folder"] * 30)
    folder = sockets.socket_dir(data_dir)
    folder.symlink_to(tmp_path)
    with pytest.raises(PermissionError, match="somebody else"):
        sockets.make_socket_dir(data_dir)


@pytest.mark.django_db
def test_the_servers_listen_on_private_sockets_only():
    folder = sockets.socket_dir(settings.DATA_DIR)
    assert not stat.S_IMODE(folder.stat().st_mode) & (stat.S_IRWXG | stat.S_IROTH | stat.S_IWOTH)
    assert (folder / sockets.VALKEY_SOCKET).is_socket()
    with connection.cursor() as cursor:
        cursor.execute("SELECT current_setting('listen_addresses')")
        assert cursor.fetchone() == ("",)
    with redis.Redis.from_url(settings.REDIS_URL) as client:
        assert client.config_get("port") == {b"port": b"0"} or client.config_get("port") == {"port": "0"}


@pytest.mark.django_db(transaction=True)
def test_no_value_of_a_failing_statement_is_in_the_servers_log():
    log = settings.DATA_DIR / "log" / "postgres.log"
    before = len(log.read_text())
    insert = "INSERT INTO django_session (session_key, session_data, expire_date) VALUES (%s, %s, now())"
    with connection.cursor() as cursor:
        cursor.execute(insert, ["tenants-own-key", "tenants-own-text"])
        with pytest.raises(IntegrityError):
            cursor.execute(insert, ["tenants-own-key", "tenants-own-text"])
        with pytest.raises(DataError):
            cursor.execute("SELECT 1 / %s, %s", [0, "tenants-own-text"])
    dsn = sockets.postgres_dsn(settings.DATA_DIR, connection.settings_dict["NAME"])
    with pytest.raises(psycopg.errors.UniqueViolation), psycopg.connect(dsn) as bound:
        bound.execute(insert, ["tenants-own-key", "tenants-own-text"])  # parameters apart from the text
    written = log.read_text()[before:]
    assert written.count('duplicate key value violates unique constraint "django_session_pkey"') == 2
    assert "division by zero" in written
    assert "tenants-own" not in written
