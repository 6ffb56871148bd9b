/** Returns variables as lines such as `A=1`; as JSON where a value has several lines. */
export function environText(environ: Readonly<Record<string, string>>): string {
  const entries = Object.entries(environ);
  if (entries.some(([, value]) => /[\r\n]/.test(value))) return JSON.stringify(environ, null, 2);
  return entries.map(([name, value]) => `${name}=${value}`).join('\n');
}

function environOfJson(text: string): Record<string, string> | null {
  try {
    const value: unknown = JSON.parse(text);
    const isMap = typeof value === 'object' && value !== null && !Array.isArray(value);
    return isMap && Object.values(value).every((each) => typeof each === 'string')
      ? (value as Record<string, string>)
      : null;
  } catch {
    return null;
  }
}

/** Returns the variables of lines such as `A=1`, or of a JSON object; null if a line is none. */
export function environOf(lines: string): Record<string, string> | null {
  if (lines.trimStart().startsWith('{')) return environOfJson(lines);
  const entries = lines
    .split('\n')
    .filter((line) => line.trim() !== '')
    .map((line) => /^\s*([A-Za-z_][A-Za-z0-9_]*)=(.*)$/.exec(line));
  if (entries.some((entry) => entry === null)) return null;
  return Object.fromEntries(entries.map((entry) => [entry?.[1] ?? '', entry?.[2] ?? '']));
}
