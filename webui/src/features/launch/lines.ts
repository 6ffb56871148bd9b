/** Adds a line to the lines of a field, unless it is there. */
export function withLine(text: string, line: string): string {
  const lines = text.split('\n').filter((each) => each.trim() !== '');
  return lines.includes(line) ? text : [...lines, line].join('\n');
}
