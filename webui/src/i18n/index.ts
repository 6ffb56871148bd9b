import i18next from 'i18next';
import { initReactI18next } from 'react-i18next';
import type en from './en';
import { type LaterMessages, later } from './later';

export const languages = { en: 'English', ko: '한국어' } as const;
export type Language = keyof typeof languages;

const storageKey = 'backendai-language';

declare module 'i18next' {
  interface CustomTypeOptions {
    defaultNS: 'app';
    resources: typeof en & LaterMessages;
  }
}

function isLanguage(value: string | null): value is Language {
  return value !== null && value in languages;
}

/** Returns the chosen language, else the first preferred one that there is, else English. */
export function chooseLanguage(stored: string | null, preferred: readonly string[]): Language {
  if (isLanguage(stored)) return stored;
  return preferred.map((tag) => tag.split('-')[0] ?? '').find(isLanguage) ?? 'en';
}

async function load(language: Language) {
  return (language === 'ko' ? await import('./ko') : await import('./en')).default;
}

function stored(): string | null {
  try {
    return localStorage.getItem(storageKey);
  } catch {
    return null;
  }
}

/** Loads the messages of the user's language. `preferred` are language tags, the best first. */
export async function startI18n(preferred: readonly string[]): Promise<void> {
  const language = chooseLanguage(stored(), preferred);
  document.documentElement.lang = language;
  await i18next.use(initReactI18next).init({
    lng: language,
    fallbackLng: false,
    defaultNS: 'app',
    resources: { [language]: await load(language) },
    interpolation: { escapeValue: false },
    showSupportNotice: false,
  } as Parameters<typeof i18next.init>[0]);
}

const loaded = new Set<keyof LaterMessages>();

async function addMessages(name: keyof LaterMessages, language: Language): Promise<void> {
  if (i18next.hasResourceBundle(language, name)) return;
  i18next.addResourceBundle(language, name, (await later[name][language]()).default);
}

/** Loads the messages that a page brings along, in the language of now; they follow a change of language. */
export async function loadMessages(name: keyof LaterMessages): Promise<void> {
  loaded.add(name);
  await addMessages(name, currentLanguage());
}

/** Shows the console in another language from now on, also after a reload. */
export async function changeLanguage(language: Language): Promise<void> {
  for (const [namespace, messages] of Object.entries(await load(language))) {
    i18next.addResourceBundle(language, namespace, messages, true, true);
  }
  await Promise.all([...loaded].map((name) => addMessages(name, language)));
  try {
    localStorage.setItem(storageKey, language);
  } catch {
    // Storage may be forbidden: the choice holds until the reload.
  }
  document.documentElement.lang = language;
  await i18next.changeLanguage(language);
}

export function currentLanguage(): Language {
  return isLanguage(i18next.language) ? i18next.language : 'en';
}
