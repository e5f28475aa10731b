"""Every model of this app, one noun a file."""

from tenants.models.account import Account
from tenants.models.activation import Activation
from tenants.models.adapter import Adapter, AdapterAllowance, AdapterVersion
from tenants.models.api_key import ApiKey
from tenants.models.audit import AuditEntry
from tenants.models.base_model import BaseModel, ModelAllowance
from tenants.models.batch import Batch, BatchResult
from tenants.models.denial import Denial
from tenants.models.file import File
from tenants.models.idempotency import IdempotentRequest
from tenants.models.identity import Identity, SignInTries
from tenants.models.invitation import Invitation
from tenants.models.ledger import LedgerEntry
from tenants.models.limits import Limits, Plan
from tenants.models.member import Member
from tenants.models.operator_key import OperatorKey
from tenants.models.payload import Payload, PayloadStoring
from tenants.models.price import Price
from tenants.models.reconciliation import ReconciliationRun
from tenants.models.release import Release
from tenants.models.request import InferenceRequest
from tenants.models.tenant import Tenant
from tenants.models.upload import AdapterUpload
from tenants.models.usage import UsageHour, UsageMark
from tenants.models.webhook import Webhook, WebhookAttempt, WebhookDelivery, WebhookEvent

__all__ = [
    "Account",
    "Activation",
    "Adapter",
    "AdapterAllowance",
    "AdapterUpload",
    "AdapterVersion",
    "ApiKey",
    "AuditEntry",
    "BaseModel",
    "Batch",
    "BatchResult",
    "Denial",
    "File",
    "IdempotentRequest",
    "Identity",
    "InferenceRequest",
    "Invitation",
    "LedgerEntry",
    "Limits",
    "Member",
    "ModelAllowance",
    "OperatorKey",
    "Payload",
    "PayloadStoring",
    "Plan",
    "Price",
    "ReconciliationRun",
    "Release",
    "SignInTries",
    "Tenant",
    "UsageHour",
    "UsageMark",
    "Webhook",
    "WebhookAttempt",
    "WebhookDelivery",
    "WebhookEvent",
]
