"""One small main() per process."""

import warnings

# oslo's libraries say at import that eventlet is on its way out; nothing here uses it.
warnings.filterwarnings("ignore", message="(?s).*Eventlet is deprecated.*")
