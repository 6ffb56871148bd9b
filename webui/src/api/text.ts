/** Returns text without the escape sequences of terminals. */
export function withoutEscapes(text: string): string {
  // biome-ignore lint/suspicious/noControlCharactersInRegex: escape sequences begin with a control character
  return text.replace(/\u001b(\[[0-?]*[ -/]*[@-~]|\][^\u0007\u001b]*(\u0007|\u001b\\)|[@-Z\\-_])/g, '');
}

/** Returns the e-mail addresses of a text, each once, and the words in it that are none. */
export function addressesOf(text: string): { emails: string[]; faulty: string[] } {
  const words = [...new Set(text.split(/[\s,;]+/).filter((word) => word !== ''))];
  const isAddress = (word: string) => /^[^@\s]+@[^@\s]+$/.test(word);
  return { emails: words.filter(isAddress), faulty: words.filter((word) => !isAddress(word)) };
}
