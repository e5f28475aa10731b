"""Every model of this app, one noun a file."""

from tenants.models.adapter import Adapter, AdapterAllowance, AdapterVersion
from tenants.models.api_key import ApiKey
from tenants.models.base_model import BaseModel, ModelAllowance
from tenants.models.ledger import LedgerEntry
from tenants.models.limits import Limits, Plan
from tenants.models.member import Member
from tenants.models.request import InferenceRequest, RateBucket
from tenants.models.tenant import Tenant

__all__ = [
    "Adapter",
    "AdapterAllowance",
    "AdapterVersion",
    "ApiKey",
    "BaseModel",
    "InferenceRequest",
    "LedgerEntry",
    "Limits",
    "Member",
    "ModelAllowance",
    "Plan",
    "RateBucket",
    "Tenant",
]
