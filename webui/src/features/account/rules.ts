/** Returns a key in groups of four characters, as people type it. */
export function grouped(key: string): string {
  return key.replace(/(.{4})(?=.)/g, '$1 ');
}

// A browser names those whose pages it wants to be given, so that the most particular names come first.
const browsers: readonly (readonly [RegExp, string])[] = [
  [/\bEdg(?:e|A|iOS)?\//, 'Edge'],
  [/\bOPR\//, 'Opera'],
  [/\b(?:Firefox|FxiOS)\//, 'Firefox'],
  [/\b(?:Chrome|CriOS|HeadlessChrome)\//, 'Chrome'],
  [/\bSafari\//, 'Safari'],
];
const systems: readonly (readonly [RegExp, string])[] = [
  [/\bAndroid\b/, 'Android'],
  [/\b(?:iPhone|iPad)\b/, 'iOS'],
  [/\bWindows\b/, 'Windows'],
  [/\bMac OS X\b/, 'macOS'],
  [/\bLinux\b/, 'Linux'],
];

/** Returns a short name of what said this User-Agent; of a program that is no browser, its first word. */
export function clientName(agent: string): string {
  const nameIn = (names: typeof browsers) => names.find(([pattern]) => pattern.test(agent))?.[1];
  const browser = nameIn(browsers);
  if (browser === undefined) return agent.trim().split(/\s/)[0]?.slice(0, 64) ?? '';
  const system = nameIn(systems);
  return system === undefined ? browser : `${browser}, ${system}`;
}

/** Returns what is wrong with a public SSH key; null if nothing is. A private one must not leave its machine. */
export function sshKeyFault(text: string): 'empty' | 'private' | 'malformed' | null {
  if (text.trim() === '') return 'empty';
  if (/PRIVATE KEY/.test(text)) return 'private';
  return /^[a-z0-9@.-]+ [A-Za-z0-9+/]+={0,3}( [^\r\n]*)?$/.test(text.trim()) ? null : 'malformed';
}
