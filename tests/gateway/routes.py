"""Every route that serves what belongs to a tenant, and the test that lets a stranger try it.

A route is ``METHOD /path`` as the URL configuration writes it. ``test_routes.py`` fails for one that stands in neither
table, for an entry without a route, and for a test that does not exist. What an operator's key opens
(``/api/operator/…``) and what needs a key at all is tried there for every route without an entry here.
"""

# ruff: noqa: E501
from __future__ import annotations

OPEN = {
    "GET /": "leads to the console",
    "GET /chat": "the chat page: knows nothing of its visitor",
    "GET /health": "says whether the process takes requests",
    "GET /api/openapi.json": "the description of the API",
    "GET /admin/": "Django's admin, for staff: tests/tenants/test_admin.py",
    "GET /admin/login/": "leads to the sign-in page",
    "GET /admin/password_change/": "leads to the page for that",
    "GET /accounts/sign-in": "the sign-in page",
    "GET /accounts/sign-out": "ends the browser's own session",
    "GET /accounts/oidc": "leads to the identity provider",
}
"""Routes that show nobody's objects, and what they show instead."""

STRANGERS = {
    "GET /console/": "tests/console/test_every_page.py::test_a_strangers_page_is_no_page",
    "GET /console/live": "tests/console/test_live.py::test_a_stranger_may_not_look",
    "GET /console/t/<slug:tenant>/live": "tests/console/test_live.py::test_a_stranger_may_not_look",
    "GET /metrics": "tests/gateway/test_metrics.py::test_operators_read_totals_and_nobody_else",
    "GET /v1/models": "tests/gateway/test_errors.py::test_a_stranger_cannot_tell_an_adapter_from_nothing",
    "GET /v1/models/{path:model_id}": (
        "tests/gateway/test_errors.py::test_a_stranger_cannot_tell_an_adapter_from_nothing"
    ),
    "POST /v1/chat/completions": "tests/gateway/test_errors.py::test_a_stranger_cannot_tell_an_adapter_from_nothing",
    "POST /v1/completions": "tests/gateway/test_errors.py::test_a_stranger_cannot_tell_an_adapter_from_nothing",
    "GET /v1/ws": "tests/gateway/test_sockets.py::test_a_ticket_is_its_tenants",
    "POST /api/ws-tickets": "tests/gateway/test_sockets.py::test_a_ticket_is_its_tenants",
    "POST /api/playground-tickets": "tests/gateway/api/test_playground.py::test_a_stranger_gets_no_ticket",
    "POST /v1/files": "tests/gateway/test_files_and_batches.py::test_a_stranger_sees_no_file_and_no_batch",
    "GET /v1/files": "tests/gateway/test_files_and_batches.py::test_a_stranger_sees_no_file_and_no_batch",
    "GET /v1/files/{file_id}": "tests/gateway/test_files_and_batches.py::test_a_stranger_sees_no_file_and_no_batch",
    "GET /v1/files/{file_id}/content": "tests/gateway/test_files_and_batches.py::test_a_stranger_sees_no_file_and_no_batch",
    "DELETE /v1/files/{file_id}": "tests/gateway/test_files_and_batches.py::test_a_stranger_sees_no_file_and_no_batch",
    "POST /v1/batches": "tests/gateway/test_files_and_batches.py::test_a_stranger_sees_no_file_and_no_batch",
    "GET /v1/batches": "tests/gateway/test_files_and_batches.py::test_a_stranger_sees_no_file_and_no_batch",
    "GET /v1/batches/{batch_id}": "tests/gateway/test_files_and_batches.py::test_a_stranger_sees_no_file_and_no_batch",
    "POST /v1/batches/{batch_id}/cancel": "tests/gateway/test_files_and_batches.py::test_a_stranger_sees_no_file_and_no_batch",
    "GET /api/usage": "tests/gateway/api/test_usage.py::test_a_stranger_sees_nothing",
    "GET /api/requests": "tests/gateway/api/test_requests.py::test_a_stranger_finds_no_request",
    "GET /api/requests/{request_id}": "tests/gateway/api/test_requests.py::test_a_stranger_finds_no_request",
    "GET /api/requests/{request_id}/payload": "tests/gateway/test_payloads.py::test_a_stranger_reads_and_changes_nothing",
    "GET /api/settings/payloads": "tests/gateway/test_payloads.py::test_a_stranger_reads_and_changes_nothing",
    "PUT /api/settings/payloads": "tests/gateway/test_payloads.py::test_a_stranger_reads_and_changes_nothing",
    "DELETE /api/settings/payloads": "tests/gateway/test_payloads.py::test_a_stranger_reads_and_changes_nothing",
    "GET /api/denials": "tests/gateway/api/test_requests.py::test_denials_by_page_and_by_filter",
    "GET /api/limits": "tests/gateway/api/test_requests.py::test_limits_of_a_stranger_are_those_of_nobody",
    "GET /api/audit": "tests/gateway/api/test_management.py::test_a_stranger_sees_nothing",
    **dict.fromkeys(
        (
            "GET /api/keys",
            "POST /api/keys",
            "GET /api/keys/{key_id}",
            "PATCH /api/keys/{key_id}",
            "POST /api/keys/{key_id}/rotate",
            "POST /api/keys/{key_id}/revoke",
        ),
        "tests/gateway/api/test_keys.py::test_a_strangers_key_is_no_key",
    ),
    **dict.fromkeys(
        (
            "GET /api/webhooks",
            "POST /api/webhooks",
            "GET /api/webhooks/{webhook_id}",
            "PATCH /api/webhooks/{webhook_id}",
            "DELETE /api/webhooks/{webhook_id}",
            "POST /api/webhooks/{webhook_id}/rotate-secret",
            "POST /api/webhooks/{webhook_id}/test",
            "POST /api/webhooks/{webhook_id}/replay",
            "GET /api/webhooks/{webhook_id}/deliveries",
            "GET /api/webhooks/{webhook_id}/deliveries/{delivery_id}",
            "POST /api/webhooks/{webhook_id}/deliveries/{delivery_id}/replay",
        ),
        "tests/gateway/api/test_webhooks.py::test_a_stranger_gets_what_nobodys_webhook_gives",
    ),
    **dict.fromkeys(
        (
            "GET /api/adapters/{name}/releases",
            "POST /api/adapters/{name}/promote",
            "POST /api/adapters/{name}/canary",
            "POST /api/adapters/{name}/rollback",
            "GET /api/adapters/{name}/release-policy",
            "PATCH /api/adapters/{name}/release-policy",
            "POST /api/adapters/{name}/versions/{number}/trial",
        ),
        "tests/gateway/api/test_releases.py::test_a_stranger_gets_what_nobodys_adapter_gives",
    ),
    **dict.fromkeys(
        (
            "GET /api/adapters",
            "GET /api/adapters/{name}",
            "DELETE /api/adapters/{name}",
            "GET /api/adapters/{name}/versions",
            "GET /api/adapters/{name}/versions/{number}",
            "DELETE /api/adapters/{name}/versions/{number}",
            "GET /api/adapters/{name}/compare",
            "GET /api/adapters/{name}/shares",
            "POST /api/adapters/{name}/shares",
            "DELETE /api/adapters/{name}/shares/{receiver}",
            "GET /api/shared-adapters",
            "GET /api/adapter-quotas",
            "GET /api/account-id",
        ),
        "tests/gateway/api/test_adapters.py::test_a_stranger_finds_no_adapter",
    ),
    **dict.fromkeys(
        (
            "GET /api/uploads",
            "POST /api/uploads",
            "GET /api/uploads/{upload_id}",
            "DELETE /api/uploads/{upload_id}",
            "PUT /api/uploads/{upload_id}/files/{name}",
            "POST /api/uploads/{upload_id}/complete",
        ),
        "tests/gateway/api/test_adapters.py::test_a_stranger_finds_no_upload",
    ),
    "GET /api/members": "tests/gateway/api/test_members.py::test_a_stranger_finds_no_member",
    "GET /api/members/{member_id}": "tests/gateway/api/test_members.py::test_a_stranger_finds_no_member",
    "PATCH /api/members/{member_id}": "tests/gateway/api/test_members.py::test_a_stranger_finds_no_member",
    "DELETE /api/members/{member_id}": "tests/gateway/api/test_members.py::test_a_stranger_finds_no_member",
    "GET /api/invitations": "tests/gateway/api/test_invitations.py::test_a_stranger_finds_no_invitation",
    "POST /api/invitations": "tests/gateway/api/test_invitations.py::test_a_stranger_finds_no_invitation",
    "GET /api/invitations/{invitation_id}": "tests/gateway/api/test_invitations.py::test_a_stranger_finds_no_invitation",
    "DELETE /api/invitations/{invitation_id}": "tests/gateway/api/test_invitations.py::test_a_stranger_finds_no_invitation",
    "GET /accounts/": "tests/gateway/accounts/test_sign_in.py::test_a_stranger_sees_only_their_own_account",
    "GET /accounts/password": "tests/gateway/accounts/test_sign_in.py::test_a_stranger_sees_only_their_own_account",
    "GET /accounts/passwords/<name>/<token>": "tests/gateway/accounts/test_sign_in.py::test_an_operators_link_sets_a_password_once",
    "GET /accounts/invitation": "tests/gateway/accounts/test_invitations.py::test_an_invitation_is_for_its_own_address",
    "GET /accounts/invitations/<token>": "tests/gateway/accounts/test_invitations.py::test_an_invitation_is_for_its_own_address",
    "GET /accounts/oidc/callback": "tests/gateway/accounts/test_oidc.py::test_an_address_opens_no_account",
}
"""Routes of tenants, and ``file::test`` in which another tenant's key or member gets the same as for nothing."""
