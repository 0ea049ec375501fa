"""A TCP relay in front of a server, which can fall silent as a stopped server does: it refuses nothing."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress


class Relay:
    """Connections to `port` of this machine, handed on to a server of it, or held without a word."""

    def __init__(self, host: str, port: int) -> None:
        self._server = host, port
        self._speaks = threading.Event()
        self._speaks.set()
        self._closed = False
        self._open: list[socket.socket] = []
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def hush(self) -> None:
        """Hand on nothing more, in neither direction, on old connections and new ones."""
        self._speaks.clear()

    def speak(self) -> None:
        """Go on where it stopped."""
        self._speaks.set()

    def close(self) -> None:
        """End all connections."""
        self._closed = True
        self._speaks.set()
        for one in (self._listening, *self._open):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        while not self._closed:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            self._open.append(client)
            threading.Thread(target=self._connect, args=(client,), daemon=True).start()

    def _connect(self, client: socket.socket) -> None:
        self._speaks.wait()
        if self._closed:
            return
        with suppress(OSError):
            server = socket.create_connection(self._server)
            self._open.append(server)
            threading.Thread(target=self._hand_on, args=(client, server), daemon=True).start()
            self._hand_on(server, client)

    def _hand_on(self, giver: socket.socket, taker: socket.socket) -> None:
        with suppress(OSError):
            while part := giver.recv(2**16):
                self._speaks.wait()
                taker.sendall(part)
        for one in (giver, taker):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
