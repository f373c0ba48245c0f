"""The entry points of all services and commands."""

import warnings

# oslo's libraries warn at import that eventlet is deprecated; Nova's services do not use it.
warnings.filterwarnings("ignore", message="(?s).*Eventlet is deprecated.*")
