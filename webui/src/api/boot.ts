/** What the web server writes into the page, so that the first paint needs no further request. */
export interface Boot {
  /** The language of the user's browser that the server chose, such as `en` or `ko`. */
  language: string;
  siteName: string;
  features: Record<string, boolean>;
  version: string;
}

const defaults: Boot = { language: '', siteName: 'Backend.AI', features: {}, version: '' };

/** Returns the boot data of a page; defaults for what is absent, as with the development server. */
export function readBoot(text: string | null): Boot {
  try {
    const data: unknown = JSON.parse(text ?? '');
    return typeof data === 'object' && data !== null ? { ...defaults, ...data } : defaults;
  } catch {
    return defaults;
  }
}

export const boot = readBoot(document.getElementById('boot')?.textContent ?? null);
