export type PluginOptions = Record<string, Record<string, unknown>>;

function parsed(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}

/** Reads lines such as `fpga.image=fft.bit`, whose values are JSON or text as on the command line; null if one is none. */
export function pluginOptionsOf(lines: string): PluginOptions | null {
  const options = new Map<string, [string, unknown][]>();
  for (const line of lines.split('\n').map((each) => each.trim())) {
    if (line === '') continue;
    const [, plugin, name, value] = /^([^.=\s]+)\.([^=\s]+)=(.*)$/.exec(line) ?? [];
    if (plugin === undefined || name === undefined || value === undefined) return null;
    options.set(plugin, [...(options.get(plugin) ?? []), [name, parsed(value)]]);
  }
  return Object.fromEntries([...options].map(([plugin, entries]) => [plugin, Object.fromEntries(entries)]));
}
