"""The HTTP service: settings, schemas, routes, encoders."""

VERSION = "0.1.0"
