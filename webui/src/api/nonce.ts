/** Returns the nonce of this page for style elements; empty with the development server. */
export function readNonce(): string {
  const nonce = document.querySelector<HTMLMetaElement>('meta[name="csp-nonce"]')?.content ?? '';
  return nonce.startsWith('__') ? '' : nonce;
}

/**
 * Gives every style element that a library creates the nonce of the page.
 *
 * The policy of the page forbids styles without it, and not every library has an option for it.
 */
export function installStyleNonce(nonce: string): void {
  if (nonce === '') return;
  const createElement = document.createElement.bind(document);
  document.createElement = ((name: string, options?: ElementCreationOptions) => {
    const element = createElement(name, options);
    if (name.toLowerCase() === 'style') element.setAttribute('nonce', nonce);
    return element;
  }) as typeof document.createElement;
}
