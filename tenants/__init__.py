"""Tenants, keys, plans, adapters, admission and the ledger. Knows nothing of HTTP, workers or dashboards."""
