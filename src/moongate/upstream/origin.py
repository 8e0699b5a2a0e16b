"""Where a transport connects to, and how many connections it may hold."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Origin:
    """One host and port with its pool's bounds.

    `server_name` is the name sent as SNI and looked for in the certificate; empty: the host. `ca_file` holds the
    only certificates to be trusted, as PEM; empty: those of the system. `idle_seconds` is how long a connection
    without work is kept; at most `max_idle` of them.
    """

    host: str
    port: int
    tls: bool = True
    server_name: str = ""
    ca_file: str = ""
    max_connections: int = 1024
    max_idle: int = 512
    idle_seconds: float = 55.0

    @property
    def authority(self) -> str:
        """The value of the Host header: the port only where it is not the scheme's own (RFC 9110, 7.2)."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.tls else 80) else f"{host}:{self.port}"
