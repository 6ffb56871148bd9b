"""An OpenLDAP server of our own, with users, groups and TLS."""

from __future__ import annotations

import socket
import subprocess
from pathlib import Path

from tests.support.certificates import self_signed
from tests.support.cluster import free_port, wait_until

BASE = "dc=example,dc=org"
ADMIN, ADMIN_PASSWORD = f"cn=admin,{BASE}", "the directory's own"
PASSWORD = "ann's own password"
_SCHEMAS = ("core", "cosine", "inetorgperson")
_CONFIG = """
{schemas}
modulepath /usr/lib/ldap
moduleload back_mdb
pidfile {folder}/slapd.pid
TLSCertificateFile {certificate}
TLSCertificateKeyFile {key}
database mdb
suffix "{base}"
directory {folder}/data
rootdn "{admin}"
rootpw "{password}"
access to attrs=userPassword by anonymous auth by * none
access to * by * read
"""
_PERSON = """
dn: uid={uid},ou=people,{base}
objectClass: inetOrgPerson
uid: {uid}
cn: {name}
sn: {name}
mail: {mail}
userPassword: {password}
"""
_ENTRIES = """
dn: {base}
objectClass: dcObject
objectClass: organization
dc: example
o: Example

dn: ou=people,{base}
objectClass: organizationalUnit
ou: people

dn: ou=groups,{base}
objectClass: organizationalUnit
ou: groups
{people}
dn: cn=research,ou=groups,{base}
objectClass: groupOfNames
cn: research
member: uid=ann,ou=people,{base}
member: uid=boss,ou=people,{base}

dn: cn=superadmin,ou=groups,{base}
objectClass: groupOfNames
cn: superadmin
member: uid=ann,ou=people,{base}
"""


class Slapd:
    """Has the users ann (in the groups research and superadmin), bob (in none) and boss (whose address is that of the
    superadmin of the installation); each has the password :data:`PASSWORD`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port, self.tls_port = free_port(), free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def uri(self) -> str:
        return f"ldap://127.0.0.1:{self.port}"

    @property
    def tls_uri(self) -> str:
        return f"ldaps://127.0.0.1:{self.tls_port}"

    def start(self) -> None:
        (self.folder / "data").mkdir(parents=True)
        self.certificate, key = self_signed(self.folder)
        schemas = "\n".join(f"include /etc/ldap/schema/{name}.schema" for name in _SCHEMAS)
        config = self.folder / "slapd.conf"
        values = {"folder": self.folder, "certificate": self.certificate, "key": key, "schemas": schemas}
        config.write_text(_CONFIG.format(base=BASE, admin=ADMIN, password=ADMIN_PASSWORD, **values))
        people = "".join(
            _PERSON.format(uid=uid, name=name, mail=mail, password=PASSWORD, base=BASE)
            for uid, name, mail in (
                ("ann", "Ann Smith", "ann@example.org"),
                ("bob", "Bob", "bob@example.org"),
                ("boss", "Boss", "admin@local"),
            )
        )
        entries = self.folder / "entries.ldif"
        entries.write_text(_ENTRIES.format(base=BASE, people=people))
        subprocess.run(["slapadd", "-q", "-f", config, "-l", entries], check=True, capture_output=True, timeout=30)
        urls = f"{self.uri} {self.tls_uri}"
        with (self.folder / "slapd.log").open("ab") as output:
            self._process = subprocess.Popen(
                ["slapd", "-d", "0", "-f", str(config), "-h", urls], stdout=output, stderr=output
            )
        wait_until(self._answers, what="slapd")

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self.folder / "slapd.log").read_text()
        try:
            with socket.create_connection(("127.0.0.1", self.tls_port), 5):
                return True
        except OSError:
            return False

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            self._process.wait(10)
