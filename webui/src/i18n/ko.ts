import home from '../app/home/locale/ko.json';
import app from '../app/locale/ko.json';
import components from '../components/locale/ko.json';
import account from '../features/account/locale/ko.json';
import folders from '../features/folders/locale/ko.json';
import images from '../features/images/locale/ko.json';
import launch from '../features/launch/locale/ko.json';
import login from '../features/login/locale/ko.json';
import people from '../features/people/locale/ko.json';
import sessions from '../features/sessions/locale/ko.json';
import terminal from '../features/terminal/locale/ko.json';
import type en from './en';

const ko = {
  account,
  app,
  components,
  folders,
  home,
  images,
  launch,
  login,
  people,
  sessions,
  terminal,
};

// Both ways, so that a key missing in either language does not compile.
const checked: typeof en = ko;
export const english: (messages: typeof en) => typeof ko = (messages) => messages;

export default checked;
