"""The default parameter store, which leaves every tensor on the device."""
