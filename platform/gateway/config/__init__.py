"""Reading the settings from the environment: one registry, and a sentence for each thing that can be wrong."""

from gateway.config.errors import SettingError
from gateway.config.registry import SETTINGS, Setting, read

__all__ = ["SETTINGS", "Setting", "SettingError", "read"]
