"""Commands of ``backend.ai ag`` that are programs of their own."""
