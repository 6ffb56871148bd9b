/** A piece of what a program has shown: text of a stream, an image, or HTML. */
export type Output =
  | { kind: 'text'; stream: 'stdout' | 'stderr'; text: string }
  | { kind: 'image'; url: string }
  | { kind: 'html'; html: string };

const imageTypes = new Set(['image/png', 'image/jpeg', 'image/gif', 'image/webp', 'image/svg+xml']);

/** Returns whether a URL is data of an image; others would make the browser ask another host. */
export function isImageData(url: string): boolean {
  const type = /^data:([a-z0-9.+/-]+)[;,]/i.exec(url)?.[1]?.toLowerCase();
  return type !== undefined && imageTypes.has(type);
}

/** Returns an image as a data URL; null for content of another type. Images run no script, SVG included. */
export function imageOf(type: string, content: string): Output | null {
  if (!imageTypes.has(type)) return null;
  if (content.startsWith('data:')) return isImageData(content) ? { kind: 'image', url: content } : null;
  const url =
    type === 'image/svg+xml'
      ? `data:${type},${encodeURIComponent(content)}`
      : `data:${type};base64,${content.replace(/\s/g, '')}`;
  return { kind: 'image', url };
}

/** Adds a piece to outputs; text of the stream that wrote last is joined. Returns new outputs. */
export function appendOutput(outputs: readonly Output[], added: Output): Output[] {
  const last = outputs.at(-1);
  if (added.kind === 'text' && last?.kind === 'text' && last.stream === added.stream) {
    return [...outputs.slice(0, -1), { ...last, text: last.text + added.text }];
  }
  return [...outputs, added];
}

const allowedTags = new Set(
  (
    'a abbr b blockquote br caption code col colgroup dd del div dl dt em figcaption figure h1 h2 h3 h4 h5 h6 hr i img ' +
    'ins kbd li ol p pre s samp small span strong sub sup table tbody td tfoot th thead tr u ul var'
  ).split(' '),
);
const removedWithContent = new Set(
  'script style template iframe object embed svg math noscript textarea select title head link meta base form input button'.split(
    ' ',
  ),
);
const allowedAttributes = new Set([
  'colspan',
  'rowspan',
  'align',
  'title',
  'alt',
  'width',
  'height',
  'start',
  'lang',
  'dir',
]);

// Browsers report each handler and style that they parse and may not use, even in documents that nobody sees. A tag ends
// at the next `<` here: with longer ones, tags that never end would take the square of their number.
function withoutHandlers(html: string): string {
  const unstyled = html.replace(/<style\b[\s\S]*?(<\/style\s*>|$)/gi, '');
  return unstyled.replace(/<[a-z][^<>]*>/gi, (tag) => tag.replace(/([\s"'/])(on[a-z]+|style)(?=\s*=)/gi, '$1data-$2'));
}

/**
 * Returns HTML with text, tables and images alone, and whether scripts were in it.
 *
 * This keeps the browser's console quiet and the look plain. What protects the console is the frame that shows the
 * result: it has an origin of its own, runs no scripts, and inherits the policy of the page.
 */
export function plainHtml(html: string): { html: string; hadScripts: boolean } {
  const source = new DOMParser().parseFromString(withoutHandlers(html), 'text/html');
  const target = document.implementation.createHTMLDocument('');
  let hadScripts = false;
  const copy = (from: Node, to: Node, depth: number): void => {
    for (const child of from.childNodes) {
      if (child.nodeType === Node.TEXT_NODE) to.appendChild(target.createTextNode(child.textContent ?? ''));
      if (child.nodeType !== Node.ELEMENT_NODE || depth > 100) continue;
      const element = child as Element;
      const name = element.localName;
      if (name === 'script') hadScripts = true;
      if (removedWithContent.has(name)) continue;
      if (!allowedTags.has(name)) {
        copy(element, to, depth + 1);
        continue;
      }
      const made = target.createElement(name);
      for (const { name: attribute, value } of element.attributes) {
        if (/^(data-)?on/.test(attribute)) hadScripts = true;
        if (allowedAttributes.has(attribute)) made.setAttribute(attribute, value);
        if (name === 'img' && attribute === 'src' && isImageData(value)) made.setAttribute('src', value);
      }
      if (name === 'img' && !made.hasAttribute('src')) continue;
      copy(element, made, depth + 1);
      to.appendChild(made);
    }
  };
  copy(source.body, target.body, 0);
  return { html: target.body.innerHTML, hadScripts };
}
