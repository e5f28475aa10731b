"""Every model of this app, one noun a file."""

from tenants.models.account import Account
from tenants.models.adapter import Adapter, AdapterAllowance, AdapterVersion
from tenants.models.api_key import ApiKey
from tenants.models.base_model import BaseModel, ModelAllowance
from tenants.models.denial import Denial
from tenants.models.ledger import LedgerEntry
from tenants.models.limits import Limits, Plan
from tenants.models.member import Member
from tenants.models.price import Price
from tenants.models.request import InferenceRequest
from tenants.models.tenant import Tenant
from tenants.models.usage import UsageHour, UsageMark

__all__ = [
    "Account",
    "Adapter",
    "AdapterAllowance",
    "AdapterVersion",
    "ApiKey",
    "BaseModel",
    "Denial",
    "InferenceRequest",
    "LedgerEntry",
    "Limits",
    "Member",
    "ModelAllowance",
    "Plan",
    "Price",
    "Tenant",
    "UsageHour",
    "UsageMark",
]
