// One terminal. Its key lives as long as the tab, so that a reload or a lost connection comes back to the same shell.
"use strict";
(() => {
  const ENDED = 4000;
  const TAKEN_OVER = 4001;
  const TOO_MANY = 4002;
  const terminal = new Terminal({ cursorBlink: true, scrollback: 10000 });
  const fit = new FitAddon.FitAddon();
  const notice = document.getElementById("notice");
  const encoder = new TextEncoder();
  let socket = null;
  let delay = 250;

  const newKey = () =>
    Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");

  function key() {
    let found = sessionStorage.getItem("terminal-key");
    if (!found) {
      found = newKey();
      sessionStorage.setItem("terminal-key", found);
    }
    return found;
  }

  function say(text) {
    notice.textContent = text;
    notice.hidden = !text;
  }

  function send(kind, data) {
    if (!socket || socket.readyState !== WebSocket.OPEN) {
      return;
    }
    const message = new Uint8Array(data.length + 1);
    message[0] = kind.charCodeAt(0);
    message.set(data, 1);
    socket.send(message);
  }

  const sendSize = () => send("1", encoder.encode(JSON.stringify({ rows: terminal.rows, cols: terminal.cols })));

  function connect() {
    const url = new URL("ws", location.href);
    url.protocol = location.protocol === "https:" ? "wss:" : "ws:";
    url.search = new URLSearchParams({ key: key(), rows: terminal.rows, cols: terminal.cols });
    socket = new WebSocket(url);
    socket.binaryType = "arraybuffer";
    socket.onopen = () => {
      delay = 250;
      say("");
      sendSize();
    };
    socket.onmessage = (event) => terminal.write(new Uint8Array(event.data));
    socket.onclose = (event) => {
      if (event.code === ENDED) {
        sessionStorage.removeItem("terminal-key");
        say("The shell has ended. Press Enter for another one.");
      } else if (event.code === TAKEN_OVER) {
        say("This terminal is open elsewhere. Press Enter to take it back.");
      } else if (event.code === TOO_MANY) {
        say("Too many terminals are open. Close one, then press Enter.");
      } else {
        say("The connection was lost. Connecting again ...");
        setTimeout(connect, delay);
        delay = Math.min(delay * 2, 5000);
        return;
      }
      socket = null;
    };
  }

  terminal.loadAddon(fit);
  terminal.open(document.getElementById("terminal"));
  fit.fit();
  terminal.onData((text) => {
    if (socket === null) {
      if (text === "\r") {
        terminal.reset();
        connect();
      }
      return;
    }
    send("0", encoder.encode(text));
  });
  terminal.onBinary((text) => send("0", Uint8Array.from(text, (letter) => letter.charCodeAt(0))));
  terminal.onResize(sendSize);
  new ResizeObserver(() => fit.fit()).observe(document.getElementById("terminal"));
  connect();
  terminal.focus();
})();
