const cleaners = new Set<() => void>();

/** Calls a function whenever what the page keeps of a person has to go; a module calls it once for what it keeps. */
export function onForget(clean: () => void): void {
  cleaners.add(clean);
}

/** Drops what modules keep of the person who was here, so that the next one on this page sees and runs none of it. */
export function forgetPerson(): void {
  for (const clean of cleaners) clean();
}
