"""The default parameter store. It leaves every tensor on the device."""
