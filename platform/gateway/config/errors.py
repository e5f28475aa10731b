from django.core.exceptions import ImproperlyConfigured


class SettingError(ImproperlyConfigured):
    """A setting is malformed. The message is one sentence that names it; it never holds a secret's value."""
