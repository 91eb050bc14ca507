"""The HTTP service: settings, schemas, routes, encoders; the engine is in `service.engine`."""

VERSION = "0.1.0"
