/** Where completions are asked for (spec 03-08): the row and column of the cursor, its line until there, the rest. */
export interface CursorOptions {
  row: number;
  col: number;
  line: string;
  post: string;
}

export function cursorOf(code: string, at: number): CursorOptions {
  const before = code.slice(0, at).split('\n');
  const line = before.at(-1) ?? '';
  return { row: before.length - 1, col: line.length, line, post: code.slice(at) };
}

/** Whether something can be completed: a name or a dot is before the cursor. */
export function isCompletable(code: string, at: number): boolean {
  return /[\p{L}\p{N}_.]/u.test(code.slice(at - 1, at)) && at > 0;
}

/** Returns what a match adds to the text before the cursor, which ends with the beginning of the match. */
export function restOf(before: string, match: string): string {
  for (let length = Math.min(before.length, match.length); length > 0; length -= 1) {
    if (match.startsWith(before.slice(-length))) return match.slice(length);
  }
  return match;
}
