from django.apps import AppConfig
from django.db.models.signals import post_migrate, pre_migrate

from tenants import upgrades


class TenantsConfig(AppConfig):
    name = "tenants"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        pre_migrate.connect(upgrades.prepare, sender=self)
        post_migrate.connect(upgrades.finish, sender=self)
