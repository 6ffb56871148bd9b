/** Delays between attempts to connect, in milliseconds: doubled each time up to ten seconds, with jitter. */
export function delayBefore(attempt: number, random: () => number = Math.random): number {
  const longest = Math.min(500 * 2 ** attempt, 10_000);
  return longest * (0.5 + random() / 2);
}

/** Returns bytes as base64. Large input is encoded in pieces, since arguments of a call are limited. */
export function toBase64(bytes: Uint8Array): string {
  let text = '';
  for (let start = 0; start < bytes.length; start += 8192) {
    text += String.fromCharCode(...bytes.subarray(start, start + 8192));
  }
  return btoa(text);
}

/** Returns the bytes of base64. Throws for other text. */
export function fromBase64(text: string): Uint8Array {
  return Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
}

export type ServerMessage = { kind: 'output'; bytes: Uint8Array } | { kind: 'error'; text: string };

/** Returns what a frame of the server says; null for frames of other kinds, which newer servers may send. */
export function readMessage(frame: unknown): ServerMessage | null {
  if (typeof frame !== 'string') return null;
  try {
    const message: unknown = JSON.parse(frame);
    if (typeof message !== 'object' || message === null) return null;
    const { type, data } = message as { type?: unknown; data?: unknown };
    if (typeof data !== 'string') return null;
    if (type === 'out') return { kind: 'output', bytes: fromBase64(data) };
    return type === 'error' ? { kind: 'error', text: data } : null;
  } catch {
    return null;
  }
}

/**
 * Returns pasted text without control characters but tabs and line ends. Nobody sees them in what a page has put into the
 * clipboard, and `ESC [201~` among them would end the brackets by which a shell knows pasted text from typed commands.
 */
export function pastedText(text: string): string {
  return text.replace(/[^\P{Cc}\t\r\n]/gu, '');
}

/** Returns how many lines a text has, without an empty last one. */
export function lineCount(text: string): number {
  return text.replace(/(\r\n|\r|\n)$/, '').split(/\r\n|\r|\n/).length;
}

/** Returns the start of a text that may be long, for a question about it. */
export function excerpt(text: string, lines = 8, width = 400): string {
  const shown = text
    .split(/\r\n|\r|\n/)
    .slice(0, lines)
    .join('\n')
    .slice(0, width);
  return shown.length < text.length ? `${shown}\n…` : shown;
}
