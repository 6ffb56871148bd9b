/** How long after the last touch of this page its requests are no longer the work of a person, in milliseconds. */
const attendedMs = 60_000;

let touchedAt = Date.now();
for (const kind of ['pointerdown', 'keydown', 'wheel', 'touchstart']) {
  window.addEventListener(kind, () => (touchedAt = Date.now()), { passive: true, capture: true });
}

/** Marks a request that this page makes by itself, so that it does not put off the end of a login that nobody uses. */
export function markAttendance(headers: Headers, now = Date.now()): void {
  if (now - touchedAt > attendedMs) headers.set('X-BackendAI-Unattended', '1');
}
