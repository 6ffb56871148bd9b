import { parseObject } from '../../api/filters';

export interface SessionFile {
  name: string;
  isDirectory: boolean;
  size: number;
  /** Seconds since 1970. */
  changed: number;
}

/** Returns the entries of a directory of a session, directories first; `text` is JSON inside the reply. */
export function filesOf(text: string): SessionFile[] {
  const { entries } = parseObject(`{"entries":${text}}`);
  if (!Array.isArray(entries)) return [];
  return entries
    .map((entry: Record<string, unknown>) => ({
      name: String(entry.filename ?? ''),
      isDirectory: entry.kind === 'directory' || String(entry.mode ?? '').startsWith('d'),
      size: Number(entry.size) || 0,
      changed: Number(entry.mtime) || 0,
    }))
    .sort((a, b) => Number(b.isDirectory) - Number(a.isDirectory) || a.name.localeCompare(b.name));
}

const block = 512;
const decoder = new TextDecoder();

function textAt(bytes: Uint8Array, start: number, length: number): string {
  const field = bytes.subarray(start, start + length);
  const end = field.indexOf(0);
  return decoder.decode(end < 0 ? field : field.subarray(0, end));
}

/**
 * Returns the content of the first regular file of a tar archive (POSIX ustar with pax headers); null if there is none,
 * or if the archive is cut off.
 */
export function firstFileOf(archive: Uint8Array): Uint8Array<ArrayBuffer> | null {
  for (let start = 0; start + block <= archive.length; ) {
    const size = Number.parseInt(textAt(archive, start + 124, 12).trim(), 8);
    const type = textAt(archive, start + 156, 1) || '0';
    if (!Number.isFinite(size) || size < 0) return null;
    const content = start + block;
    if (type === '0') return content + size <= archive.length ? archive.slice(content, content + size) : null;
    start = content + Math.ceil(size / block) * block; // names and times of the file that follows, or a directory
  }
  return null;
}

function indexOf(bytes: Uint8Array, mark: Uint8Array, from: number): number {
  const [first = 0] = mark;
  for (let at = bytes.indexOf(first, from); at >= 0; at = bytes.indexOf(first, at + 1)) {
    if (mark.every((byte, offset) => bytes[at + offset] === byte)) return at;
  }
  return -1;
}

/** Returns the body of the first part of a multipart reply (RFC 2046); null for anything else. */
export function firstPartOf(bytes: Uint8Array, contentType: string): Uint8Array | null {
  const boundary = /boundary="?([^";]+)"?/i.exec(contentType)?.[1];
  if (boundary === undefined) return null;
  const encoder = new TextEncoder();
  const begin = indexOf(bytes, encoder.encode(`--${boundary}`), 0);
  if (begin < 0) return null;
  const head = indexOf(bytes, encoder.encode('\r\n\r\n'), begin);
  const end = head < 0 ? -1 : indexOf(bytes, encoder.encode(`\r\n--${boundary}`), head + 4);
  return end < 0 ? null : bytes.subarray(head + 4, end);
}
