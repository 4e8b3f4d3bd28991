"""What all tests share."""

from hypothesis import HealthCheck, settings

# An example that waits for the disk or a busy core is not a failure.
settings.register_profile("kerntree", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("kerntree")
