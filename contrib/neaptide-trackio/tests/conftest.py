"""Trackio reads its directory when it is imported."""

import os
import tempfile

os.environ["TRACKIO_DIR"] = tempfile.mkdtemp(prefix="trackio-")
