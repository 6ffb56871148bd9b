import { asProblem } from '../problems';

/**
 * Returns what is wrong with each field of a form, by the names that the manager gives in a problem.
 *
 * The problem's own sentence stands for the short word of a single field; `isPlaced` if every name has a field, and the
 * problem as a whole says no more.
 */
export function errorsByField<F extends string>(
  error: unknown,
  names: Readonly<Record<string, F>>,
): { errors: Partial<Record<F, string>>; isPlaced: boolean } {
  const errors: Partial<Record<F, string>> = {};
  if (error === null || error === undefined) return { errors, isPlaced: true };
  const problem = asProblem(error);
  const entries = Object.entries(problem.fields);
  let isPlaced = entries.length > 0;
  for (const [path, message] of entries) {
    const parts = path.replace(/^config\./, '').split('.');
    const name = [parts.at(-1) ?? '', parts[0] ?? ''].find((each) => Object.hasOwn(names, each));
    const field = name === undefined ? undefined : names[name];
    if (field) errors[field] = entries.length === 1 && problem.message !== '' ? problem.message : message;
    else isPlaced = false;
  }
  return { errors, isPlaced };
}
