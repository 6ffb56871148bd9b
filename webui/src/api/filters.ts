/** How an expression of the manager begins: a field, an operator, and after a word as operator also a value. */
const expression =
  /^[\s(]*[a-z_]\w*\s*(?:==|!=|<|>|\s(?:is|isnot|like|ilike|contains)\s*(?:["'\d]|-\d|(?:true|false|null|none)\b)|\sin\s*\[)/i;

/** Returns the filter of the manager for what was typed: an expression as it is, other text as a part of a field. */
export function filterOf(field: string, text: string): string | null {
  const trimmed = text.trim();
  if (trimmed === '') return null;
  if (expression.test(trimmed)) return trimmed;
  return `${field} ilike "%${trimmed.replace(/["\\%]/g, '')}%"`;
}

/** Returns the object of JSON text; an empty one for other text. */
export function parseObject(text: string | null | undefined): Record<string, unknown> {
  try {
    const value: unknown = JSON.parse(text ?? '');
    return typeof value === 'object' && value !== null ? (value as Record<string, unknown>) : {};
  } catch {
    return {};
  }
}

/** Returns slot amounts of JSON text by name, without those that are zero. */
export function slotsOf(text: string | null | undefined): Record<string, string> {
  return Object.fromEntries(
    Object.entries(parseObject(text))
      .map(([name, amount]) => [name, String(amount)] as const)
      .filter(([, amount]) => Number(amount) !== 0),
  );
}
