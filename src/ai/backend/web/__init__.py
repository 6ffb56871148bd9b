"""The web server: browsers sign in with a password, and their requests reach the managers signed (spec 03-02:183)."""
