"""Sign-in by a directory over LDAP."""
