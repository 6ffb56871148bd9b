import { type CSSVariablesResolver, createTheme, type MantineColorsTuple } from '@mantine/core';

const brand: MantineColorsTuple = [
  '#e9f6f2',
  '#d3e9e2',
  '#a6d5c7',
  '#76bfaa',
  '#4faa91',
  '#349b80',
  '#268a70',
  '#1b7059',
  '#135a47',
  '#0a4434',
];

export const theme = createTheme({
  colors: { brand },
  primaryColor: 'brand',
  primaryShade: { light: 7, dark: 7 },
  defaultRadius: 'sm',
  cursorType: 'pointer',
  respectReducedMotion: true,
  fontFamily:
    'system-ui, -apple-system, "Segoe UI", "Apple SD Gothic Neo", "Malgun Gothic", "Noto Sans KR", "Noto Sans CJK KR", sans-serif',
  fontFamilyMonospace: 'ui-monospace, SFMono-Regular, Menlo, Consolas, "D2Coding", monospace',
  // The head of a dialog is no banner of the page, which its element would make it (WCAG 2.2, 1.3.1).
  components: { Modal: { defaultProps: { attributes: { header: { role: 'presentation' } } } } },
  headings: { fontWeight: '600', sizes: { h1: { fontSize: '1.5rem' }, h2: { fontSize: '1.125rem' } } },
});

/** Colours of text whose defaults have too little contrast (WCAG 2.2, 1.4.3). */
export const cssVariables: CSSVariablesResolver = (values) => ({
  variables: {},
  light: {
    '--mantine-color-dimmed': values.colors.gray[7],
    '--mantine-color-placeholder': '#656d76',
    '--mantine-color-error': values.colors.red[9],
    '--mantine-color-anchor': values.colors.brand?.[8] ?? '',
    '--app-surface': '#ffffff',
    '--app-ground': '#f5f7f6',
    '--app-line': '#dbe1de',
    '--app-good': '#12603f',
    '--app-good-ground': '#e0f3ea',
    '--app-busy': '#1a4f8b',
    '--app-busy-ground': '#e3eefa',
    '--app-wait': '#7a4a00',
    '--app-wait-ground': '#fdf0d5',
    '--app-bad': '#9b1c1c',
    '--app-bad-ground': '#fce6e6',
    '--app-idle': '#495057',
    '--app-idle-ground': '#eceff1',
  },
  dark: {
    '--mantine-color-body': '#141a18',
    '--mantine-color-dimmed': '#a7b2ae',
    '--mantine-color-placeholder': '#99a5a0',
    '--mantine-color-error': values.colors.red[4],
    '--mantine-color-anchor': values.colors.brand?.[3] ?? '',
    '--app-surface': '#1b2320',
    '--app-ground': '#141a18',
    '--app-line': '#34403b',
    '--app-good': '#8fdcb5',
    '--app-good-ground': '#173a2a',
    '--app-busy': '#a3cbf7',
    '--app-busy-ground': '#17304c',
    '--app-wait': '#f5cf8a',
    '--app-wait-ground': '#43300c',
    '--app-bad': '#ffb3b3',
    '--app-bad-ground': '#4a1c1c',
    '--app-idle': '#c1cac6',
    '--app-idle-ground': '#2a3430',
  },
});
