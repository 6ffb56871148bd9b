"""The commands of ``backend.ai mgr`` (spec 03-02), one module each."""
