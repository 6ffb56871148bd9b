import './theme/styles';
import { MantineProvider } from '@mantine/core';
import { QueryClientProvider } from '@tanstack/react-query';
import { RouterProvider } from '@tanstack/react-router';
import { StrictMode } from 'react';
import { createRoot } from 'react-dom/client';
import { boot } from './api/boot';
import { installStyleNonce, readNonce } from './api/nonce';
import { makeQueryClient } from './app/queries';
import { makeRouter } from './app/router';
import { startI18n } from './i18n';
import { cssVariables, theme } from './theme/theme';

const nonce = readNonce();
installStyleNonce(nonce);

async function start(): Promise<void> {
  await startI18n([boot.language, ...navigator.languages].filter((tag) => tag !== ''));
  const client = makeQueryClient();
  const router = makeRouter(client);
  const root = document.getElementById('root');
  if (root === null) throw new Error('The page has no place for the console.');
  createRoot(root).render(
    <StrictMode>
      <MantineProvider
        theme={theme}
        cssVariablesResolver={cssVariables}
        defaultColorScheme="auto"
        getStyleNonce={() => nonce}
      >
        <QueryClientProvider client={client}>
          <RouterProvider router={router} />
        </QueryClientProvider>
      </MantineProvider>
    </StrictMode>,
  );
}

void start();
