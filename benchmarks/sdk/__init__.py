"""What the SDK costs beside plain httpx."""
