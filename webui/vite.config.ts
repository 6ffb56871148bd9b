import react from '@vitejs/plugin-react';
import { defineConfig } from 'vitest/config';

// Where the development server finds a running web server.
const webServer = process.env.BACKENDAI_WEB_SERVER ?? 'http://127.0.0.1:8090';

// What every page needs is one file. Components of Mantine that the shell and the start page do not use come with the
// pages that do; without this list they would be loaded first by everybody.
const pageComponents = [
  ...[
    'Autocomplete',
    'Checkbox',
    'Chip',
    'ColorInput',
    'Combobox',
    'Drawer',
    'Fieldset',
    'FileInput',
    'List',
    'MultiSelect',
    'NumberInput',
  ],
  ...[
    'Pagination',
    'Pill',
    'PillsInput',
    'Radio',
    'RingProgress',
    'SegmentedControl',
    'Select',
    'Slider',
    'Stepper',
    'Switch',
    'Table',
  ],
  ...['Tabs', 'TagsInput', 'Textarea', 'Timeline', 'Tooltip', 'Tree'],
].join('|');
const sharedLibraries = new RegExp(
  '/node_modules/(react|react-dom|scheduler|@tanstack|i18next|react-i18next|@floating-ui|openapi-fetch|gql\\.tada|clsx|use-sync-external-store' +
    `|@mantine/(?!(core|spotlight)/styles|core/esm/components/(${pageComponents})/))/?`,
);

export default defineConfig({
  base: './',
  plugins: [react()],
  build: {
    target: 'es2022',
    sourcemap: false,
    cssCodeSplit: false, // one small file, so that the first page makes few requests
    manifest: 'manifest.json',
    modulePreload: { polyfill: false },
    assetsInlineLimit: 0,
    reportCompressedSize: false,
    chunkSizeWarningLimit: 1200,
    rolldownOptions: {
      output: {
        entryFileNames: 'assets/[name].js',
        chunkFileNames: 'assets/[name].js',
        assetFileNames: 'assets/[name][extname]',
        codeSplitting: {
          groups: [
            { name: 'vendor', test: sharedLibraries },
            // What the shell and most pages use: one file instead of one each. Forms come with their pages.
            {
              name: 'parts',
              test: /vite\/preload-helper|\/src\/(api\/(?!generated|forms)|components\/(ProblemAlert|Query)\.)/,
            },
          ],
        },
      },
    },
  },
  server: {
    proxy: {
      '/func': { target: webServer, ws: true },
      '/server': { target: webServer },
    },
  },
  test: {
    environment: 'happy-dom',
    setupFiles: ['src/testing/setup.ts'],
    include: ['src/**/*.test.{ts,tsx}'],
    restoreMocks: true,
    testTimeout: 120_000, // ends what hangs, on a machine that is busy with other lanes too
    expect: { poll: { timeout: 60_000 } },
  },
});
