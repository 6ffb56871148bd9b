/** Returns the lines of a field, without blanks around them and without empty ones. */
export function linesOf(text: string): string[] {
  return text
    .split('\n')
    .map((line) => line.trim())
    .filter((line) => line !== '');
}

/** Adds a line to the lines of a field, unless it is there. */
export function withLine(text: string, line: string): string {
  const lines = linesOf(text);
  return lines.includes(line) ? text : [...lines, line].join('\n');
}
