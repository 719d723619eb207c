"""The default parameter store: everything stays on the device."""
