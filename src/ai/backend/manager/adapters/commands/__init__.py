"""Commands of ``backend.ai mgr`` that work on the database or the shared configuration (spec 03-02)."""
