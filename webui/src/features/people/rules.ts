import type { Role } from '../../api/me';
import type { Problem } from '../../api/problems';

/** Returns a limit for reading: zero and less, and what is absent, mean none. */
export function limitOf(value: number | null | undefined): number {
  return value === null || value === undefined || value <= 0 ? Number.POSITIVE_INFINITY : value;
}

/** Returns the roles that somebody of a role may give; the manager has the last word. */
export function rolesFor(role: Role): Role[] {
  return role === 'superadmin' ? ['user', 'admin', 'superadmin', 'monitor'] : ['user'];
}

/** Returns the text of a problem for those fields of a form that it names; `isPlaced` if there is one. */
export function placesOf<F extends string>(
  problem: Problem | null,
  fields: readonly F[],
): { errors: Partial<Record<F, string>>; isPlaced: boolean } {
  if (problem === null) return { errors: {}, isPlaced: true };
  const named = fields.filter((field) => field in problem.fields);
  const errors = Object.fromEntries(named.map((field) => [field, problem.detail || problem.title]));
  return { errors: errors as Partial<Record<F, string>>, isPlaced: named.length > 0 };
}
